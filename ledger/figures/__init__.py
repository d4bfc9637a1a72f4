"""The indicators M1 to M15: what each means, when its hours are counted, and sketches of how values are spread."""
