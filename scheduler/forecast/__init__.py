"""When waiting jobs start: the queue played forward."""
