"""Job traces played on a fleet of equal nodes: what a rule of the queue would have made of them."""
