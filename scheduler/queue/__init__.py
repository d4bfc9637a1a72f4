"""The order in which jobs are tried, and the report for each pending one."""
