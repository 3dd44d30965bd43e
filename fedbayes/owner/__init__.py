"""What a client's owner lets out: disclosure rules, which look at the client's own data before anything is sent."""
