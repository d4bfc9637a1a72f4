"""What operators and tenants see: pages rendered here, live by server-sent events, under the API's permissions."""
