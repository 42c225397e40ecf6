"""What another priority, time to live or link would have made of a day: simulated hub by hub."""
