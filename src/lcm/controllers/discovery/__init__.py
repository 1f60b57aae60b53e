"""Discovery: finds instances in the cloud that no worker record describes, and imports them."""
