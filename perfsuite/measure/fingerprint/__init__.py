"""What a warm call runs, as short hashes: a call with the same ones takes as long as it took."""
