"""Models of protocols that this project rests on, each small enough to visit all of its states."""
