"""`manage.py runserver` on Towline: an app for INSTALLED_APPS, before `django.contrib.staticfiles` (docs/django.md)."""
