"""Where checkpoints lie: a folder or an object store, with the same promises."""
