"""A project without a database."""

SECRET_KEY = "signs nothing here"
DEBUG = False
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS: list[str] = []
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "app.urls"
