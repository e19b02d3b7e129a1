"""Gates on heads, trained until most are shut."""
