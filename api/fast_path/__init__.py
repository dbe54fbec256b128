"""Plain sends without the cost of a full request. Only the application switches it on."""
