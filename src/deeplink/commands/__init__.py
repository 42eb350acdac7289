"""The commands of `deeplink`: their options and help, without importing torch."""
