"""Files with which a pool is deployed, made from its settings: texts only, nothing is started or installed."""
