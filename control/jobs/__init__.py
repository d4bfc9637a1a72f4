"""Jobs as their tenants use and read them."""
