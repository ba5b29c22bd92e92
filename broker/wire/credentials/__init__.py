"""What clients show: certificates, bearer tokens, JWTs. Each becomes a principal, and is seen nowhere else."""
