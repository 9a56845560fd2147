from tests.api_fixtures import api, campaign, deployment, make_client, model_folder

__all__ = ["api", "campaign", "deployment", "make_client", "model_folder"]
