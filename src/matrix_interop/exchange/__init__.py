"""From a view into any framework: deciding (`plan`), then doing (`convert`)."""
