"""Which remedy a fault needs, and who starts it."""
