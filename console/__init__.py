"""Pages for operators and tenants: rendered here, live by server-sent events, under the API's permissions."""
