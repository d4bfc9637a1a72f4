"""The judge: pure functions from evidence to score, standing and admission."""
