"""Small parts that every room uses: checks of numbers, schedules, keys, weights, eigenvalues."""
