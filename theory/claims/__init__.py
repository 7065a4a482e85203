"""One module per claim or family of claims: statement, verdict, witness, repair, proof, checks."""
