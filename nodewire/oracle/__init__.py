"""An oracle: a subscriber of relays that certifies, with 2f+1 others, who is alive and what was committed."""
