#!/bin/sh
# Makes the secrets that the services share, each in the folder of the services that may read it. A second run changes
# nothing, except that it renews a certificate made for another name. No secret is in any service's environment.
set -eu
umask 077

: "${API_NAME:?the name by which people reach the API}"
: "${DATABASE:?host:port of PostgreSQL}" "${BROKER:?host:port of Redis}" "${API:?host:port of the API, for hosts}"
: "${STORE:?host:port of the content store}" "${PUBLIC_STORE:?the same, for clients and hosts}"
: "${CONTROL:?}" "${DATABASE_SECRET:?}" "${BROKER_SECRET:?}" "${STORE_SECRET:?}" "${HOSTS:?}"
: "${CHECKPOINTS:?}" "${OBJECTS:?}" "${STATE:?}"

secret() { # makes a file with 32 random bytes in hexadecimal digits, unless it exists
    [ -s "$1" ] || { openssl rand -hex 32 >"$1.new" && mv "$1.new" "$1"; }
}

replace() { # writes standard input to a file, whole or not at all
    cat >"$1.new" && mv "$1.new" "$1"
}

subject() { # prints a name or an IP address as a certificate has it
    case $1 in
    *[!0-9.]*) printf 'DNS:%s' "$1" ;;
    *) printf 'IP:%s' "$1" ;;
    esac
}

certificate() { # makes a self-signed one for the names of API and content store, those inside, and this machine
    named=$(subject "$API_NAME"),$(subject "${PUBLIC_STORE%:*}")
    openssl req -x509 -nodes -days 825 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
        -subj "/CN=$API_NAME" -addext "subjectAltName=$named,DNS:${API%:*},DNS:${STORE%:*},DNS:localhost,IP:127.0.0.1" \
        -addext keyUsage=critical,digitalSignature,keyCertSign \
        -keyout "$CONTROL/tls.key.new" -out "$CONTROL/tls.pem.new" 2>/dev/null
    mv "$CONTROL/tls.key.new" "$CONTROL/tls.key"
    mv "$CONTROL/tls.pem.new" "$CONTROL/tls.pem"
    printf '%s\n' "$NAMES" | replace "$CONTROL/tls.name"
}

store_key() { # makes the first key of the content store, unless there is one
    [ -s "$STORE_SECRET/store.key" ] ||
        printf 'muster-%s %s\n' "$(openssl rand -hex 6)" "$(openssl rand -hex 32)" | replace "$STORE_SECRET/store.key"
}

NAMES="$API_NAME ${STORE%:*} ${PUBLIC_STORE%:*}"

secret "$CONTROL/secret.key"
[ -e "$CONTROL/secrets.key" ] || printf 'first %s\n' "$(openssl rand -hex 32)" | replace "$CONTROL/secrets.key"
secret "$DATABASE_SECRET/password"
secret "$CONTROL/broker.password"
secret "$HOSTS/broker.password"
store_key
[ "$(cat "$CONTROL/tls.name" 2>/dev/null)" = "$NAMES" ] || certificate
replace "$HOSTS/ca.pem" <"$CONTROL/tls.pem"
replace "$STORE_SECRET/tls.pem" <"$CONTROL/tls.pem"
replace "$STORE_SECRET/tls.key" <"$CONTROL/tls.key"

# Without a password a client may only ping the broker. Muster's users may do what workers/wakeup/broker_rules.py lists:
# the control plane writes to the queues of hosts, and the hosts, which share one user here, read them.
replace "$BROKER_SECRET/users.acl" <<ACL
user default on nopass resetkeys resetchannels -@all +ping
user muster-control on >$(cat "$CONTROL/broker.password") resetkeys ~muster:host.* ~muster:_kombu.binding*.host.* resetchannels -@all +client|setname +hello +info +ping +select +multi +exec +lpush +llen +sadd +smembers
user muster-host on >$(cat "$HOSTS/broker.password") resetkeys ~muster:host.* ~muster:_kombu.binding*.host.* resetchannels -@all +client|setname +hello +info +ping +select +multi +exec +brpop +llen +sadd +smembers +srem +hset +hget +hdel +zadd +zrem +zrange +zrevrangebyscore +lpush +rpush +watch +unwatch +get +set +evalsha +script|load +pexpire +del
ACL

replace "$CONTROL/settings.yaml" <<YAML
database_url: postgresql://muster:$(cat "$DATABASE_SECRET/password")@$DATABASE/muster
broker_url: redis://muster-control:$(cat "$CONTROL/broker.password")@$BROKER/0
secret_key_file: $CONTROL/secret.key
secret_keys_file: $CONTROL/secrets.key
api_host: 0.0.0.0
api_port: ${API##*:}
api_tls_certificate: $CONTROL/tls.pem
api_tls_key: $CONTROL/tls.key
store_url: https://$STORE
store_public_url: https://$PUBLIC_STORE
store_gateway_url: https://$PUBLIC_STORE
store_key_file: $STORE_SECRET/store.key
store_ca_file: $CONTROL/tls.pem
store_checkpoint_dirs: [$CHECKPOINTS]
YAML

replace "$STORE_SECRET/settings.yaml" <<YAML
store_key_file: $STORE_SECRET/store.key
store_dir: $OBJECTS
store_host: 0.0.0.0
store_port: ${STORE##*:}
store_tls_certificate: $STORE_SECRET/tls.pem
store_tls_key: $STORE_SECRET/tls.key
store_checkpoint_dirs: [$CHECKPOINTS]
YAML

replace "$HOSTS/settings.yaml" <<YAML
api_url: https://$API
api_ca_file: $HOSTS/ca.pem
broker_url: redis://muster-host:$(cat "$HOSTS/broker.password")@$BROKER/0
checkpoints_dir: $CHECKPOINTS
state_dir: $STATE
YAML
