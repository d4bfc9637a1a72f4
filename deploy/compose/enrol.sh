#!/bin/sh
# What an operator does on the first day, by the same commands: a policy, a tenant with its key, a person for the
# console, and a join token for each host that has not enrolled. A second run does only what is missing.
#
#   enrol.sh HOST:RACK…
#
# Ranks meet under a host's name, or under ADDRESS where every host is one machine.
set -eu
umask 077

: "${KEYS:?}" "${STATES:?}" "${FAULTS:?}" "${POLICY:?}"

once() { # FILE COMMAND…: writes the command's output to the file, unless it exists; whole or not at all
    file=$1
    shift
    [ -s "$file" ] || { "$@" >"$file.new" && mv "$file.new" "$file"; }
}

tenant_key() { # takes the second name if a key has the first: an interrupted run made it, and its token is lost
    for name in demo "demo-$(date -u +%s)"; do
        muster key create --name "$name" --role tenant_admin --tenant demo && return
        [ $? -eq 5 ] || return 1
    done
    return 1
}

[ "$(muster policy list --json)" != "[]" ] ||
    muster policy activate "$POLICY" --reason 'simulated hosts: timers scaled, so that days pass in seconds'

if [ ! -s "$KEYS/tenant.key" ]; then
    muster tenant create demo || [ $? -eq 5 ] # 5: it exists, from an interrupted run
    once "$KEYS/tenant.key" tenant_key
fi
once "$KEYS/console.password" muster person create operator --role operator

[ -s "$FAULTS/faults.json" ] || (umask 022 && printf '{"faults": []}\n' >"$FAULTS/faults.json")

for host in "$@"; do
    name=${host%%:*} state=$STATES/${host%%:*}
    [ -e "$state/agent/identity.json" ] && continue
    rm -f "$state/join.token"
    once "$state/join.token" muster join-token create "$name" --rack "${host#*:}" --address "${ADDRESS:-$name}"
done
