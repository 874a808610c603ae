"""Django with one JSON route, as WSGI: `app`, and as ASGI: `asgi_app`."""

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(DEBUG=False, ALLOWED_HOSTS=["*"], SECRET_KEY="benchmark", ROOT_URLCONF=__name__)


def message(request):
    # As Starlette writes it: without spaces.
    return HttpResponse('{"message":"Hello, world!"}', content_type="application/json")


urlpatterns = [path("", message)]
app = get_wsgi_application()
asgi_app = get_asgi_application()
