"""What goes where: the route language, manifests and the compiled route table."""
