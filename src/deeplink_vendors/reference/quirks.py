"""x"""
def start() -> None:
    return None
