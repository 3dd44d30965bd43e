"""What runs beside a node: the worker of a site, who calls it, its code and its folder."""
