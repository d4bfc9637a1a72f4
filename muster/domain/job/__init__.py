"""A job as its tenant submits it, and the words in which a plan or a wait is explained."""
