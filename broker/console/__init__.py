"""The console: operators' web pages, rendered here, on the calls that AdminService and QueryService have."""
