"""Reading of a host's exit record: the cause of an attempt's end."""
