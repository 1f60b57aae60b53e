"""Who asks and what may be shown: identities and roles, secrets, webhook addresses and signatures."""
