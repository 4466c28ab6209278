"""Client authentication: logins, and the credentials that SASL logins are checked against."""
