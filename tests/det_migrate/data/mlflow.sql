CREATE TABLE "experiments" (
	experiment_id INTEGER NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	artifact_location VARCHAR(256), 
	lifecycle_stage VARCHAR(32), 
	creation_time BIGINT, 
	last_update_time BIGINT, 
	workspace VARCHAR(63) DEFAULT 'default' NOT NULL, 
	CONSTRAINT experiment_pk PRIMARY KEY (experiment_id), 
	CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT uq_experiments_workspace_name UNIQUE (workspace, name)
);
INSERT INTO experiments VALUES (0, 'Default', '/home/you/mlruns/0', 'active', 1795726309309, 1795726309309, 'default');
INSERT INTO experiments VALUES (1, 'digits', 's3://bucket/artifacts', 'active', 1795726309329, 1795726309329, 'default');
INSERT INTO experiments VALUES (2, 'gone', 's3://bucket/gone', 'deleted', 1795726310481, 1795726310494, 'default');
CREATE TABLE "experiment_tags" (
	"key" VARCHAR(250) NOT NULL, 
	value TEXT, 
	experiment_id INTEGER NOT NULL, 
	CONSTRAINT experiment_tag_pk PRIMARY KEY ("key", experiment_id), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id)
);
INSERT INTO experiment_tags VALUES ('mlflow.note.content', 'the first try', 1);
CREATE TABLE "runs" (
	run_uuid VARCHAR(32) NOT NULL, 
	name VARCHAR(250), 
	source_type VARCHAR(20), 
	source_name VARCHAR(500), 
	entry_point_name VARCHAR(50), 
	user_id VARCHAR(256), 
	status VARCHAR(9), 
	start_time BIGINT, 
	end_time BIGINT, 
	source_version VARCHAR(50), 
	lifecycle_stage VARCHAR(20), 
	artifact_uri VARCHAR(200), 
	experiment_id INTEGER, deleted_time BIGINT, 
	CONSTRAINT run_pk PRIMARY KEY (run_uuid), 
	CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id), 
	CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
INSERT INTO runs VALUES ('95800ac3915f449492fe4a147dfff8a6', 'finished', 'UNKNOWN', '', '', 'unknown', 'FINISHED', 1600000000000, 1600000060000, '', 'active', 's3://bucket/artifacts/95800ac3915f449492fe4a147dfff8a6/artifacts', 1, NULL);
INSERT INTO runs VALUES ('7160983084984d0ab4f32c59f3a96ff8', 'failed', 'UNKNOWN', '', '', 'unknown', 'FAILED', 1600000000000, 1600000060000, '', 'active', 's3://bucket/artifacts/7160983084984d0ab4f32c59f3a96ff8/artifacts', 1, NULL);
INSERT INTO runs VALUES ('edfa2910b0bd4eae97947b69e6f4809c', 'killed', 'UNKNOWN', '', '', 'unknown', 'KILLED', 1600000000000, 1600000060000, '', 'active', 's3://bucket/artifacts/edfa2910b0bd4eae97947b69e6f4809c/artifacts', 1, NULL);
INSERT INTO runs VALUES ('3ae6c4af491f4022b0337db8dd5f0e8b', 'without a word', 'UNKNOWN', '', '', 'unknown', 'RUNNING', 1600000000000, NULL, '', 'active', 's3://bucket/artifacts/3ae6c4af491f4022b0337db8dd5f0e8b/artifacts', 1, NULL);
INSERT INTO runs VALUES ('b585616252904bf38488e0477355ff3e', 'deleted', 'UNKNOWN', '', '', 'unknown', 'FINISHED', 1600000000000, 1600000060000, '', 'deleted', 's3://bucket/artifacts/b585616252904bf38488e0477355ff3e/artifacts', 1, 1795726309771);
INSERT INTO runs VALUES ('0a95c148f30542a4b825807b0bd7782a', 'a search', 'UNKNOWN', '', '', 'unknown', 'FINISHED', 1600000000000, 1600000060000, '', 'active', 's3://bucket/artifacts/0a95c148f30542a4b825807b0bd7782a/artifacts', 1, NULL);
INSERT INTO runs VALUES ('10c365f72b3c44a4b04137920a8effe7', 'child 0.7', 'UNKNOWN', '', '', 'unknown', 'FINISHED', 1600000000000, 1600000060000, '', 'active', 's3://bucket/artifacts/10c365f72b3c44a4b04137920a8effe7/artifacts', 1, NULL);
INSERT INTO runs VALUES ('fa15afc7fc274bc7ae8fadf17d0a23d7', 'child 0.8', 'UNKNOWN', '', '', 'unknown', 'FINISHED', 1600000000000, 1600000060000, '', 'active', 's3://bucket/artifacts/fa15afc7fc274bc7ae8fadf17d0a23d7/artifacts', 1, NULL);
CREATE TABLE "metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	step BIGINT DEFAULT '0' NOT NULL, 
	is_nan BOOLEAN DEFAULT '0' NOT NULL, 
	CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO metrics VALUES ('val/loss', 0.2, 1600000000010, '95800ac3915f449492fe4a147dfff8a6', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.15000000000000002, 1600000000020, '95800ac3915f449492fe4a147dfff8a6', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.30000000000000004, 1600000000010, '95800ac3915f449492fe4a147dfff8a6', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.2, 1600000000020, '95800ac3915f449492fe4a147dfff8a6', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, '95800ac3915f449492fe4a147dfff8a6', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, '95800ac3915f449492fe4a147dfff8a6', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, '95800ac3915f449492fe4a147dfff8a6', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, '95800ac3915f449492fe4a147dfff8a6', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, '95800ac3915f449492fe4a147dfff8a6', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, '95800ac3915f449492fe4a147dfff8a6', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, '95800ac3915f449492fe4a147dfff8a6', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.30000000000000004, 1600000000010, '7160983084984d0ab4f32c59f3a96ff8', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.25, 1600000000020, '7160983084984d0ab4f32c59f3a96ff8', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.4, 1600000000010, '7160983084984d0ab4f32c59f3a96ff8', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.30000000000000004, 1600000000020, '7160983084984d0ab4f32c59f3a96ff8', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, '7160983084984d0ab4f32c59f3a96ff8', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, '7160983084984d0ab4f32c59f3a96ff8', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, '7160983084984d0ab4f32c59f3a96ff8', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, '7160983084984d0ab4f32c59f3a96ff8', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, '7160983084984d0ab4f32c59f3a96ff8', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, '7160983084984d0ab4f32c59f3a96ff8', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, '7160983084984d0ab4f32c59f3a96ff8', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.4, 1600000000010, 'edfa2910b0bd4eae97947b69e6f4809c', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.35, 1600000000020, 'edfa2910b0bd4eae97947b69e6f4809c', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.5, 1600000000010, 'edfa2910b0bd4eae97947b69e6f4809c', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.4, 1600000000020, 'edfa2910b0bd4eae97947b69e6f4809c', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, 'edfa2910b0bd4eae97947b69e6f4809c', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, 'edfa2910b0bd4eae97947b69e6f4809c', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 'edfa2910b0bd4eae97947b69e6f4809c', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, 'edfa2910b0bd4eae97947b69e6f4809c', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, 'edfa2910b0bd4eae97947b69e6f4809c', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, 'edfa2910b0bd4eae97947b69e6f4809c', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, 'edfa2910b0bd4eae97947b69e6f4809c', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.5, 1600000000010, '3ae6c4af491f4022b0337db8dd5f0e8b', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.45, 1600000000020, '3ae6c4af491f4022b0337db8dd5f0e8b', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.6000000000000001, 1600000000010, '3ae6c4af491f4022b0337db8dd5f0e8b', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.5, 1600000000020, '3ae6c4af491f4022b0337db8dd5f0e8b', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, '3ae6c4af491f4022b0337db8dd5f0e8b', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, '3ae6c4af491f4022b0337db8dd5f0e8b', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, '3ae6c4af491f4022b0337db8dd5f0e8b', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, '3ae6c4af491f4022b0337db8dd5f0e8b', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, '3ae6c4af491f4022b0337db8dd5f0e8b', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, '3ae6c4af491f4022b0337db8dd5f0e8b', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, '3ae6c4af491f4022b0337db8dd5f0e8b', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.6, 1600000000010, 'b585616252904bf38488e0477355ff3e', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.55, 1600000000020, 'b585616252904bf38488e0477355ff3e', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.7, 1600000000010, 'b585616252904bf38488e0477355ff3e', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.6, 1600000000020, 'b585616252904bf38488e0477355ff3e', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, 'b585616252904bf38488e0477355ff3e', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, 'b585616252904bf38488e0477355ff3e', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 'b585616252904bf38488e0477355ff3e', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, 'b585616252904bf38488e0477355ff3e', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, 'b585616252904bf38488e0477355ff3e', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, 'b585616252904bf38488e0477355ff3e', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, 'b585616252904bf38488e0477355ff3e', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.7, 1600000000010, '0a95c148f30542a4b825807b0bd7782a', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.65, 1600000000020, '0a95c148f30542a4b825807b0bd7782a', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.8, 1600000000010, '0a95c148f30542a4b825807b0bd7782a', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.7, 1600000000020, '0a95c148f30542a4b825807b0bd7782a', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, '0a95c148f30542a4b825807b0bd7782a', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, '0a95c148f30542a4b825807b0bd7782a', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, '0a95c148f30542a4b825807b0bd7782a', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, '0a95c148f30542a4b825807b0bd7782a', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, '0a95c148f30542a4b825807b0bd7782a', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, '0a95c148f30542a4b825807b0bd7782a', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, '0a95c148f30542a4b825807b0bd7782a', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.7999999999999999, 1600000000010, '10c365f72b3c44a4b04137920a8effe7', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.75, 1600000000020, '10c365f72b3c44a4b04137920a8effe7', 20, 0);
INSERT INTO metrics VALUES ('loss', 0.8999999999999999, 1600000000010, '10c365f72b3c44a4b04137920a8effe7', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.7999999999999999, 1600000000020, '10c365f72b3c44a4b04137920a8effe7', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, '10c365f72b3c44a4b04137920a8effe7', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, '10c365f72b3c44a4b04137920a8effe7', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, '10c365f72b3c44a4b04137920a8effe7', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, '10c365f72b3c44a4b04137920a8effe7', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, '10c365f72b3c44a4b04137920a8effe7', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, '10c365f72b3c44a4b04137920a8effe7', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, '10c365f72b3c44a4b04137920a8effe7', 0, 0);
INSERT INTO metrics VALUES ('val/loss', 0.9, 1600000000010, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 10, 0);
INSERT INTO metrics VALUES ('val/loss', 0.8500000000000001, 1600000000020, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 20, 0);
INSERT INTO metrics VALUES ('loss', 1.0, 1600000000010, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 10, 0);
INSERT INTO metrics VALUES ('loss', 0.9, 1600000000020, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 20, 0);
INSERT INTO metrics VALUES ('loss', 7.0, 1600000000025, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 20, 0);
INSERT INTO metrics VALUES ('odd', 0.0, 1600000000000, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 10, 1);
INSERT INTO metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 20, 0);
INSERT INTO metrics VALUES ('early', 1.0, 1600000000000, 'fa15afc7fc274bc7ae8fadf17d0a23d7', -1, 0);
INSERT INTO metrics VALUES ('plain', 0.0, 1600000000000, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 0, 0);
INSERT INTO metrics VALUES ('plain', 0.5, 1600000000001, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 0, 0);
INSERT INTO metrics VALUES ('plain', 1.0, 1600000000002, 'fa15afc7fc274bc7ae8fadf17d0a23d7', 0, 0);
CREATE TABLE "params" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000) NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT param_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO params VALUES ('lr', '0.1', '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO params VALUES ('net', 'mlp', '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO params VALUES ('lr', '0.2', '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO params VALUES ('net', 'mlp', '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO params VALUES ('lr', '0.3', 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO params VALUES ('net', 'mlp', 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO params VALUES ('lr', '0.4', '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO params VALUES ('net', 'mlp', '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO params VALUES ('lr', '0.5', 'b585616252904bf38488e0477355ff3e');
INSERT INTO params VALUES ('net', 'mlp', 'b585616252904bf38488e0477355ff3e');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', 'b585616252904bf38488e0477355ff3e');
INSERT INTO params VALUES ('lr', '0.6', '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO params VALUES ('net', 'mlp', '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO params VALUES ('lr', '0.7', '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO params VALUES ('net', 'mlp', '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO params VALUES ('lr', '0.8', 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO params VALUES ('net', 'mlp', 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO params VALUES ('api_key', 'hush-hush-hush', 'fa15afc7fc274bc7ae8fadf17d0a23d7');
CREATE TABLE "tags" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000), 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT tag_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO tags VALUES ('mlflow.runName', 'finished', '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO tags VALUES ('mlflow.runName', 'failed', '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO tags VALUES ('mlflow.runName', 'killed', 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO tags VALUES ('mlflow.runName', 'without a word', '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO tags VALUES ('mlflow.runName', 'deleted', 'b585616252904bf38488e0477355ff3e');
INSERT INTO tags VALUES ('mlflow.runName', 'a search', '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO tags VALUES ('mlflow.parentRunId', '0a95c148f30542a4b825807b0bd7782a', '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO tags VALUES ('mlflow.runName', 'child 0.7', '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO tags VALUES ('mlflow.parentRunId', '0a95c148f30542a4b825807b0bd7782a', 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO tags VALUES ('mlflow.runName', 'child 0.8', 'fa15afc7fc274bc7ae8fadf17d0a23d7');
CREATE TABLE "latest_metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT, 
	step BIGINT NOT NULL, 
	is_nan BOOLEAN NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT latest_metric_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO latest_metrics VALUES ('val/loss', 0.15000000000000002, 1600000000020, 20, 0, '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, '95800ac3915f449492fe4a147dfff8a6');
INSERT INTO latest_metrics VALUES ('val/loss', 0.25, 1600000000020, 20, 0, '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, '7160983084984d0ab4f32c59f3a96ff8');
INSERT INTO latest_metrics VALUES ('val/loss', 0.35, 1600000000020, 20, 0, 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, 'edfa2910b0bd4eae97947b69e6f4809c');
INSERT INTO latest_metrics VALUES ('val/loss', 0.45, 1600000000020, 20, 0, '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, '3ae6c4af491f4022b0337db8dd5f0e8b');
INSERT INTO latest_metrics VALUES ('val/loss', 0.55, 1600000000020, 20, 0, 'b585616252904bf38488e0477355ff3e');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, 'b585616252904bf38488e0477355ff3e');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, 'b585616252904bf38488e0477355ff3e');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, 'b585616252904bf38488e0477355ff3e');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, 'b585616252904bf38488e0477355ff3e');
INSERT INTO latest_metrics VALUES ('val/loss', 0.65, 1600000000020, 20, 0, '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, '0a95c148f30542a4b825807b0bd7782a');
INSERT INTO latest_metrics VALUES ('val/loss', 0.75, 1600000000020, 20, 0, '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, '10c365f72b3c44a4b04137920a8effe7');
INSERT INTO latest_metrics VALUES ('val/loss', 0.8500000000000001, 1600000000020, 20, 0, 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO latest_metrics VALUES ('loss', 7.0, 1600000000025, 20, 0, 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO latest_metrics VALUES ('odd', 1.7976931348623157e+308, 1600000000000, 20, 0, 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO latest_metrics VALUES ('early', 1.0, 1600000000000, -1, 0, 'fa15afc7fc274bc7ae8fadf17d0a23d7');
INSERT INTO latest_metrics VALUES ('plain', 1.0, 1600000000002, 0, 0, 'fa15afc7fc274bc7ae8fadf17d0a23d7');
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES ('dc11669786a5');
