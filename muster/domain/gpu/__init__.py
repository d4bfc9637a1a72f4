"""Description of a GPU and its place: metrics, states, rails, levels."""
