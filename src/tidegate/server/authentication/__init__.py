"""Who a client is: logins by SASL, and the credentials that they are held against."""
