"""What a run consists of: its settings, its state, and the rows that it records."""
