"""What the zygote preloads and the forked processes run; the embedded owner; solo."""
