"""Commands on GPUs and on what their health is judged by."""
