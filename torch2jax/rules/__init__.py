"""What a rule is: the table of rules, and what runs around the body of each."""
