"""What a GPU and its place are: metrics, states, rails, levels."""
