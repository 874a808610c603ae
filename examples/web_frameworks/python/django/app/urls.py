"""The routes of the contract in Django."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.index),
    path("user/<int:number>", views.user),
    path("user", views.create_user),
]
