"""Commands on GPUs and on the data by which their health is judged."""
