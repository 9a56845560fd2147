from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "rackforge.accounts"
    label = "accounts"
