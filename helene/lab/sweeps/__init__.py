"""Many runs: in this process, in workers, on a cluster; what was done is not done again."""
