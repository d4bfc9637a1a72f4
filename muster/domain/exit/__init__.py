"""From a host's exit record to the cause of an attempt's end."""
