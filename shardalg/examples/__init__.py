"""Models of other packages, complaints of users, and the report of `shardalg explore`."""
