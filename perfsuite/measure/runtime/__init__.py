"""What a warm call does when it runs: programs, transfers, host calls, donated and leaked memory, and where from."""
